package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"google.golang.org/protobuf/proto"
)

// Nodes that do not mean the same cluster must not form one, nor two. Before a member begins a cluster, enters one or
// starts from its log, it asks all nodes of its list, also those that run no member by its own list, who they are:
//
//	this member   the other               they differ in                          the member
//	is empty      is empty                who votes, or the cluster's name        is refused
//	is empty      runs, votes not by its  the voters run no member of the         is refused
//	              own list                other's cluster
//	is empty      runs, does not know it  it votes not by the other's list        waits, and is not added
//	has a log     runs                    the id of the cluster in their logs     is refused, also once it runs itself
//
// Only names are compared: addresses may differ while nodes move.

// saysPath is where a member that runs says who it is, on its port for clients.
const saysPath = "/penstock/member"

// said is what a node says of itself and of its cluster. An older version says nothing, and agrees.
type said struct {
	Name    string   `json:"name"`
	Cluster string   `json:"cluster"` // cluster-name
	Peers   []string `json:"peers"`   // cluster-peers, as NAME=HOST:PORT of etcd's members
	Voters  []string `json:"voters"`  // names of those that run a member, by that list
}

// says returns what this member says.
func (m *Member) says() *said {
	s := &said{Name: m.o.Name, Cluster: m.o.Token}
	for _, v := range m.o.Peers {
		s.Peers = append(s.Peers, v.Name+"="+v.Peer)
	}
	for _, v := range m.o.Voters {
		s.Voters = append(s.Voters, v.Name)
	}
	return s
}

// differs says in what two nodes that are about to begin a cluster do not agree; empty: in nothing. other nil: unknown.
func (s *said) differs(other *said) string {
	switch {
	case other == nil:
		return ""
	case s.Cluster != other.Cluster:
		return fmt.Sprintf("it is of the cluster %q, and this node of %q", other.Cluster, s.Cluster)
	case slices.Equal(slices.Sorted(slices.Values(s.Voters)), slices.Sorted(slices.Values(other.Voters))):
		return ""
	}
	return fmt.Sprintf("by its cluster-peers (%s) the metadata store runs on %s, and by those of this node (%s) on %s",
		strings.Join(other.Peers, ","), strings.Join(other.Voters, ", "), strings.Join(s.Peers, ","),
		strings.Join(s.Voters, ", "))
}

func (m *Member) disagree(name, why string) error {
	return fmt.Errorf("etcd: node %s does not mean the same cluster: %s. Nothing was formed or changed; give all nodes "+
		"the same cluster-name and the same cluster-peers, in the same order", name, why)
}

// agreeToBegin refuses if a node that answered means another cluster than this member, which has no metadata.
func (m *Member) agreeToBegin(all []sighting) error {
	for _, s := range all {
		switch {
		case s.state == empty:
			if why := m.says().differs(s.says); why != "" {
				return m.disagree(s.name, why)
			}
		case s.state == running && m.voter(s.name) == nil && m.stands(all, s.cluster):
			return m.disagree(s.name, fmt.Sprintf("it runs a metadata store with %s, and by the cluster-peers of this node "+
				"(%s) the store runs on %s", strings.Join(namesOf(s.members), ", "), strings.Join(m.says().Peers, ","),
				strings.Join(m.says().Voters, ", ")))
		}
	}
	return nil
}

// stands says whether all voters have answered, and none of them runs a member of the given cluster.
func (m *Member) stands(all []sighting, cluster uint64) bool {
	return !slices.ContainsFunc(all, func(s sighting) bool {
		return m.voter(s.name) != nil && (s.state == silent || s.state == running && s.cluster == cluster)
	})
}

// agreeToEnter returns errTryAgain if a running member's list does not have this node, which it does not know: the
// cluster would count on a node that nobody named.
func (m *Member) agreeToEnter() error {
	for _, v := range m.o.Voters {
		if v.Name == m.o.Name {
			continue
		}
		if s := m.askWho(m.ctx, v); s != nil && !slices.Contains(s.Voters, m.o.Name) {
			return fmt.Errorf("%w: %w", errTryAgain, m.disagree(v.Name, s.lacks(m.o.Name)))
		}
	}
	return nil
}

func (s *said) lacks(name string) string {
	return fmt.Sprintf("by its cluster-peers (%s) %s is not one of those that run the metadata store, and it is not "+
		"added before it is: write the new list into the settings of the nodes that run, and restart them first",
		strings.Join(s.Peers, ","), name)
}

// agreeToStart refuses if a node runs a member of another cluster than the one of this member's log.
func (m *Member) agreeToStart() error {
	own := clusterOf(m.o.Dir)
	if own == 0 || len(m.o.Peers) == 1 {
		return nil
	}
	for _, s := range m.survey() {
		if s.state == running && s.cluster != 0 && s.cluster != own {
			return fmt.Errorf("%w: %s is of the cluster %x, and node %s runs a member of the cluster %x, with %s: each of the "+
				"two was formed without the other, or this node was away when its cluster was rebuilt. Nothing was changed. By "+
				"cluster-peers (%s) they are one cluster: take the other nodes out of the list if they are not; otherwise decide "+
				"which one goes on, and see operating.md, Lost quorum, for the data of the other",
				ErrDirectory, m.o.Dir, own, s.name, s.cluster, strings.Join(namesOf(s.members), ", "),
				strings.Join(m.says().Peers, ","))
		}
	}
	return nil
}

// agreeToServe is agreeToStart for a member that runs, in a cluster that lacks a node of its list: that node may have
// started at the same moment, in another cluster, and not have answered before.
func (m *Member) agreeToServe(server *embed.Etcd) error {
	members := server.Server.Cluster().Members()
	for _, v := range m.o.Voters {
		if !slices.ContainsFunc(members, func(k *membership.Member) bool { return k.Name == v.Name }) {
			return m.agreeToStart()
		}
	}
	return nil
}

func namesOf(members []known) (names []string) {
	for _, k := range members {
		names = append(names, k.Name+" at "+strings.Join(k.PeerURLs, ", "))
	}
	return names
}

// clusterOf returns the id of the cluster in the log of a stopped member; 0: it cannot be read.
func clusterOf(dir string) uint64 {
	data, _, _, err := readLog(filepath.Join(dir, memberDir, "wal"))
	var metadata etcdserverpb.Metadata
	if err != nil || proto.Unmarshal(data, &metadata) != nil {
		return 0
	}
	return metadata.GetClusterID()
}

// ServeHTTP tells other nodes who this member is.
func (s *said) ServeHTTP(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(s) }

// askWho asks a running member who it is; nil: it does not say, as older versions.
func (m *Member) askWho(ctx context.Context, v Voter) *said {
	answer, body, err := fetch(ctx, m.http, m.o.TLS.scheme()+"://"+v.Client+saysPath)
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil
	}
	return readSaid(body)
}

func readSaid(body []byte) *said {
	s := new(said)
	if json.NewDecoder(bytes.NewReader(body)).Decode(s) != nil || s.Name == "" {
		return nil
	}
	return s
}

// fetch returns an answer with the beginning of its body.
func fetch(ctx context.Context, by *http.Client, at string) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, nil, err
	}
	answer, err := by.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	return answer, body, err
}
