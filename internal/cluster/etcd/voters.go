package etcd

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"penstock/netproto"
)

// MaxVoters is the largest number of embedded members: more would make every change slower and the cluster no safer.
const MaxVoters = 5

// Voter is a node that runs, or may run, an embedded member. Each address is HOST:PORT as other nodes reach it.
type Voter struct {
	Name   string
	Node   string // for other nodes (netproto)
	Peer   string // for etcd members: the port after Node's
	Client string // for etcd clients: the port after Peer's
}

// ParsePeers reads "name=host:port,…", the value of --cluster-peers. port is for the traffic between nodes; the next
// two ports belong to etcd.
func ParsePeers(list string) ([]Voter, error) {
	var peers []Voter
	for item := range strings.SplitSeq(list, ",") {
		name, address, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("cluster peers: %q is not name=host:port: write for example "+
				"a=10.0.0.1:4254,b=10.0.0.2:4254,c=10.0.0.3:4254", item)
		}
		host, text, err := net.SplitHostPort(address)
		port, perr := strconv.ParseUint(text, 10, 16)
		if err != nil || perr != nil || port == 0 || port > 65533 {
			return nil, fmt.Errorf("cluster peers: the address of %s, %q, is not host:port with a port from 1 to 65533 (the "+
				"next two ports belong to etcd)", name, address)
		}
		if err := netproto.CheckDialled(host); err != nil {
			return nil, fmt.Errorf("cluster peers: the address of %s: %w", name, err)
		}
		at := func(n uint64) string { return net.JoinHostPort(host, strconv.FormatUint(port+n, 10)) }
		peers = append(peers, Voter{Name: name, Node: at(0), Peer: at(1), Client: at(2)})
	}
	return peers, checkVoters(peers)
}

// checkVoters refuses lists in which two nodes share a name or an address. Names go into etcd's own "name=url,name=url"
// syntax.
func checkVoters(voters []Voter) error {
	seen := make(map[string]string)
	for _, v := range voters {
		if err := netproto.CheckNodeName(v.Name); err != nil {
			return fmt.Errorf("cluster peers: %w", err)
		}
		for _, part := range []string{"name " + v.Name, "address " + v.Peer, "address " + v.Client} {
			if other, ok := seen[part]; ok {
				return fmt.Errorf("cluster peers: %s and %s have the same %s: give every node its own", other, v.Name, part)
			}
			seen[part] = v.Name
		}
	}
	return nil
}

// Voters returns the nodes of the list that run an embedded member: the first five of five or more, the first three of
// three or four, otherwise only the first. Two members would be less available than one, because both would have to be
// alive.
func Voters(peers []Voter) []Voter {
	count := min(len(peers), MaxVoters)
	if count > 0 && count%2 == 0 {
		count--
	}
	return slices.Clone(peers[:count])
}

// Endpoints returns the client addresses of the voters for [Dial], with the named voter's first.
func Endpoints(voters []Voter, first string) []string {
	var endpoints []string
	for _, v := range voters {
		if v.Name == first {
			endpoints = slices.Insert(endpoints, 0, v.Client)
		} else {
			endpoints = append(endpoints, v.Client)
		}
	}
	return endpoints
}
