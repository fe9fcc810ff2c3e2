package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

// useScheme makes the member's own copy of the membership say that all members speak the given scheme, http or https.
// etcd keeps the members' addresses as URLs, so a cluster that gets TLS, or loses it, would go on with the old ones.
// Nodes convert their copies one by one at their starts, and find each other once a majority has. A crash leaves a copy
// that is converted or not. The member does not run yet.
func useScheme(dir, scheme string) error {
	file := filepath.Join(dir, "member", "snap", "db")
	if _, err := os.Stat(file); err != nil {
		return nil // it begins, or etcd will say what is missing
	}
	be := backend.NewDefaultBackend(zap.NewNop(), file)
	members := schema.NewMembershipBackend(zap.NewNop(), be)
	all, _ := members.MustReadMembersFromBackend()
	changed := false
	for _, m := range all {
		peer, client := withScheme(m.PeerURLs, scheme), withScheme(m.ClientURLs, scheme)
		if slices.Equal(peer, m.PeerURLs) && slices.Equal(client, m.ClientURLs) {
			continue
		}
		m.PeerURLs, m.ClientURLs, changed = peer, client, true
		members.MustSaveMemberToBackend(m)
	}
	if changed {
		be.ForceCommit()
	}
	if err := be.Close(); err != nil {
		return fmt.Errorf("etcd: the database of the embedded member, %s, could not be closed: %w", file, err)
	}
	return nil
}

func withScheme(urls []string, scheme string) []string {
	out := make([]string, len(urls))
	for i, u := range urls {
		_, rest, ok := strings.Cut(u, "://")
		if out[i] = u; ok {
			out[i] = scheme + "://" + rest
		}
	}
	return out
}
