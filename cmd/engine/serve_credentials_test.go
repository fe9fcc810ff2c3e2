package main

import (
	"testing"
	"time"
)

// A running node needs no signal.
func TestChangedFilesAreRead(t *testing.T) {
	t.Parallel()
	p, address, dir, tokens := startWithCredentials(t)
	writeCertificate(t, dir, "second")
	writeToken(t, tokens, "second-token")
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		name, old, now := servedName(t, address), p.publishAs(t, "first-token"), p.publishAs(t, "second-token")
		if name == "second" && old == 401 && now == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the certificate is for %s, the old token gives %d, the new one %d", name, old, now)
		}
	}
}
