//go:build !linux

package netproto

import "syscall"

const canSample = false

func take(syscall.RawConn) (sample, bool) { return sample{}, false }

func shorten(syscall.RawConn, int) {}
