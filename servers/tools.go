//go:build tools
// +build tools

// Package servers pins the versions of nsqd and nsqlookupd that the tests run against. Nothing here is compiled
// as such: the imports make go.mod and go.sum hold what scripts/go-build needs.
package servers

import (
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
)
