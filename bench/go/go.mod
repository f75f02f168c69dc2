// Lane b of bench/throughput. `go 1.18` and this go-redis let the Go of Debian 12 (1.19) build it: from 9.15 on go-redis
// uses packages that came with Go 1.21. Built by `scripts/go-build bench/go throughput-consumer`.
module throughput-consumer

go 1.18

require (
	github.com/nsqio/go-nsq v1.1.0
	github.com/redis/go-redis/v9 v9.14.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/golang/snappy v0.0.1 // indirect
)
