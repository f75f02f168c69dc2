-- The keys of a script on one timeline, in the one order that all of them have (store/keys.py, Keys.of):
--   1 waiting zset   2 leased zset   3 tokens hash   4 schedule hash   5 losses hash   6 ledger hash
--   7 count of timelines   8 agenda zset   9 head hash   10 set zset   11 values hash
--   12 digest zset   13 digest-values hash   14 shown zset; others of the script's own follow.
local waiting, leased, tokens, schedules, losses, ledger, timeline_count, agenda = unpack(KEYS, 1, 8)
local head, index, values, snapshot, snapshot_values, memory = unpack(KEYS, 9, 14)
