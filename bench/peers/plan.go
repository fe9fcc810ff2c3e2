package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// engine is a binary of Penstock under the name that the report gives it.
type engine struct{ name, path string }

// parseEngine reads NAME=PATH, or a PATH alone, whose name is penstock.
func parseEngine(text string) (engine, error) {
	e := engine{name: "penstock", path: text}
	if name, path, ok := strings.Cut(text, "="); ok {
		e = engine{name: name, path: path}
	}
	if e.name == "" || e.path == "" || strings.ContainsAny(e.name, "/*?[ |") {
		return e, fmt.Errorf("%q is no NAME=PATH of a binary of Penstock", text)
	}
	abs, err := filepath.Abs(e.path)
	e.path = abs
	return e, err
}

const fsynced = "on stable storage"

// allPeers are all servers that this program knows, those of the engines first. Ratios are taken to the first engine.
func allPeers(engines []engine) []peer {
	var all []peer
	for _, e := range engines {
		all = append(all, peer{Name: e.name, Nodes: 1, OK: fsynced, start: startPenstock(e.path)})
	}
	for _, e := range engines {
		all = append(all, peer{
			Name: e.name + "-3", Nodes: 3, OK: fsynced + " of all in-sync nodes", start: startPenstockTrio(e.path),
		})
	}
	all = append(all, // those that flush first, then those that do not
		peer{Name: "redis-always", Nodes: 1, OK: fsynced, start: startRedis("always")},
		peer{Name: "nats-always", Nodes: 1, OK: fsynced, start: startNATS(1, "always")},
		peer{Name: "kafka-flush", Nodes: 1, OK: fsynced, start: startKafka(1, true)},
		peer{Name: "nsqd", Nodes: 1, OK: "in nsqd's memory, or written, not flushed", start: startNSQD},
		peer{Name: "redis-everysec", Nodes: 1, OK: "written; flushed each second", start: startRedis("everysec")},
		peer{Name: "nats", Nodes: 1, OK: "written; flushed every two minutes", start: startNATS(1, "")},
		peer{Name: "kafka", Nodes: 1, OK: "written, not flushed", start: startKafka(1, false)},
		peer{Name: "nats-3-always", Nodes: 3, OK: fsynced + " of two of three", start: startNATS(3, "always")},
		peer{Name: "kafka-3-flush", Nodes: 3, OK: fsynced + " of all in-sync brokers", start: startKafka(3, true)},
		peer{Name: "nats-3", Nodes: 3, OK: "written on two of three; flushed every two minutes", start: startNATS(3, "")},
		peer{Name: "kafka-3", Nodes: 3, OK: "written on all in-sync brokers, not flushed", start: startKafka(3, false)},
	)
	for i := range all {
		first := slices.IndexFunc(all, func(p peer) bool { return p.Nodes == all[i].Nodes })
		all[i].Base = all[first].Name
	}
	return all
}

// choose returns the peers or works whose names match one of the patterns, in the order that they have.
func choose[T any](from []T, name func(T) string, patterns string) ([]T, error) {
	list := strings.Split(patterns, ",")
	var chosen []T
	for _, one := range from {
		ok, err := matches(list, name(one))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", patterns, err)
		}
		if ok {
			chosen = append(chosen, one)
		}
	}
	for _, p := range list {
		hit := slices.ContainsFunc(from, func(one T) bool { ok, _ := matches([]string{p}, name(one)); return ok })
		if !hit {
			return nil, fmt.Errorf("nothing is named %s", p)
		}
	}
	return chosen, nil
}

// turn is one peer's part of a round.
type turn struct {
	Round int
	Peer  peer
}

// turns alternates between the peers. Each second round goes backwards, so that a machine that becomes slower or faster
// favours nobody.
func turns(peers []peer, rounds int) []turn {
	all := make([]turn, 0, len(peers)*rounds)
	for r := range rounds {
		order := slices.Clone(peers)
		if r%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			all = append(all, turn{Round: r, Peer: p})
		}
	}
	return all
}
