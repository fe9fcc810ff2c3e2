// Package nsqtest is for tests of servers that speak the V2 protocol: a client that does only what a test tells it to,
// the bytes of commands, and an authority for certificates. Tests of nsq and of server import it; it imports nothing of
// theirs.
package nsqtest
