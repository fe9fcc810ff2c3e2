// Package nsqtest is for tests of servers that speak the V2 protocol: a client that does only what a test tells it to,
// the bytes of commands, and an authority for certificates. Tests of server and the packages below it use it. It
// imports nothing of theirs, only patience.
package nsqtest
