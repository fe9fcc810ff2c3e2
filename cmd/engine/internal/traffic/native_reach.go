package traffic

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	nodes "penstock/client"
)

const (
	// unreachedTime is for how long nothing that the cluster announces may be reached before a command ends: longer than
	// an election, and shorter than an operator's patience.
	unreachedTime = 8 * time.Second
	// unreachedGap is the longest pause between two failures that belong together.
	unreachedGap = 15 * time.Second
)

// reach knows whether a command has reached what the cluster announces, beside the nodes that the command line names.
// The client's hooks call it.
type reach struct {
	mu            sync.Mutex // guards the rest
	reached       bool
	first, newest time.Time // failures, since none was reached
}

// connected is the hook for a connection.
func (n *nativeFlags) connected(address string) {
	if slices.Contains(n.seeds, address) {
		return
	}
	n.reach.mu.Lock()
	defer n.reach.mu.Unlock()
	n.reach.reached = true
}

// failed is the hook for a failed attempt. It ends the command if it is hopeless: a certificate is for another host, or
// nothing that the cluster announces was reached for unreachedTime.
func (n *nativeFlags) failed(_ string, err error) {
	if !isUnreached(err) {
		return
	}
	if n.reach.hopeless(err, time.Now()) && n.refuse != nil {
		n.refuse(err)
	}
}

func (r *reach) hopeless(err error, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reached {
		return false
	}
	if r.first.IsZero() || now.Sub(r.newest) > unreachedGap {
		r.first = now
	}
	r.newest = now
	return errors.As(err, new(x509.HostnameError)) || now.Sub(r.first) >= unreachedTime
}

// isUnreached says whether err is that an address which the cluster announces cannot be reached.
func isUnreached(err error) bool { return errors.As(err, new(*nodes.AnnouncedError)) }

// addresses returns what --dial says.
func (n *nativeFlags) addresses() (map[string]string, error) {
	if len(n.mapped) == 0 {
		return nil, nil
	}
	all := make(map[string]string, len(n.mapped))
	for _, one := range n.mapped {
		announced, to, _ := strings.Cut(one, "=")
		for _, address := range []string{announced, to} {
			if host, _, err := net.SplitHostPort(address); err != nil || host == "" {
				return nil, fmt.Errorf("--dial %s is not ANNOUNCED=HOST:PORT, where both are HOST:PORT", one)
			}
		}
		all[announced] = to
	}
	return all, nil
}
