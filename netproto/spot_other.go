//go:build !unix

package netproto

import "net"

// init leaves raw nil: a socket of this system is no file that a goroutine could write without blocking.
func (s *spot) init(net.Conn) {}

// tryRead is not called where raw is nil.
func (in *reader) tryRead(uintptr) bool { return true }
