-- timeline_keys: the keys of a script on one timeline, in the one order that all of them have (store/keys.py, Keys.of):
--   1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 heads hash   6 losses hash   7 ledger hash
--   8 count of timelines   9 agenda zset   10 set zset   11 values hash   12 digest zset   13 digest-values hash
--   14 shown zset; others of the script's own follow.
local waiting, leased, tokens, schedules, heads, losses, ledger, timeline_count, agenda = unpack(KEYS, 1, 9)
local index, values, snapshot, snapshot_values, memory = unpack(KEYS, 10, 14)
