//go:build tools

// Package tools pins the NSQ that tests run beside this server. It is a module of its own: nothing of it is built into
// the program.
package tools

import (
	_ "github.com/nsqio/nsq/apps/nsqadmin"
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
)
