package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"
)

const (
	// A session ends when it is that old, or was not used for that long.
	maxSessionTime = 12 * time.Hour
	maxSessionIdle = time.Hour
	// For one beyond these, the session ends that was not used for longest: of the same secret, or of all.
	maxSecretSessions = 64
	maxSessions       = 4096
)

// sessions are the browsers that have logged in at this node: each has a cookie with the id of its session, which is
// worth nothing anywhere else, and ends with the process. The secret stays here, and is looked up with each request, so
// that a session ends with its token. mu is a leaf. Any goroutine may call the methods.
type sessions struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*browserSession // by the hash of the id, which is in no memory
}

type browserSession struct {
	secret      string
	name        string // of the token
	began, used time.Time
}

func (b *browserSession) over(now time.Time) bool {
	return now.Sub(b.began) >= maxSessionTime || now.Sub(b.used) >= maxSessionIdle
}

// begin returns the id of a new session for a secret that the node knows, as that of the token name.
func (s *sessions) begin(secret, name string, now time.Time) (id string) {
	var raw [24]byte
	_, _ = rand.Read(raw[:]) // never fails
	id = hex.EncodeToString(raw[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[[sha256.Size]byte]*browserSession)
	}
	for key, b := range s.all {
		if b.over(now) {
			delete(s.all, key)
		}
	}
	s.makeRoom(maxSecretSessions, func(b *browserSession) bool { return b.secret == secret })
	s.makeRoom(maxSessions, func(*browserSession) bool { return true })
	s.all[sha256.Sum256([]byte(id))] = &browserSession{secret, name, now, now}
	return id
}

// makeRoom ends the session that was not used for longest, if most of this kind exist. mu is held.
func (s *sessions) makeRoom(most int, kind func(*browserSession) bool) {
	count, oldest := 0, [sha256.Size]byte{}
	var first *browserSession
	for key, b := range s.all {
		if !kind(b) {
			continue
		}
		if count++; first == nil || b.used.Before(first.used) {
			oldest, first = key, b
		}
	}
	if count >= most {
		delete(s.all, oldest)
	}
}

// secret returns the secret of a session that is in force, or "".
func (s *sessions) secret(id string, now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.all[sha256.Sum256([]byte(id))]
	if b == nil || b.over(now) {
		return ""
	}
	b.used = now
	return b.secret
}

// count returns how many sessions each token has.
func (s *sessions) count(now time.Time) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for _, b := range s.all {
		if !b.over(now) {
			out[b.name]++
		}
	}
	return out
}

// end ends a session, if there is one of that id.
func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sha256.Sum256([]byte(id)))
}
