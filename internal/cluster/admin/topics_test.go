package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
)

func TestCreateTopic(t *testing.T) {
	for _, c := range []struct {
		body string
		err  error
		code int
		says string // the answer, or a part of it
		call string // of Self.Create
	}{
		{`{"topic":"t","partitions":4,"replicas":2}`, nil, 200, "created with 4 partitions of 2 replicas each", "t 4 2"},
		{`{"topic":"t"}`, nil, 200, "with 1 partition of 3 replicas each", "t 0 0"},
		{`{"topic":"orders"}`, nil, 409, "there is a topic orders already", ""},
		{`{"topic":""}`, nil, 400, "topic is missing", ""},
		{`{"topic":"a b"}`, nil, 400, "cannot name a topic", ""},
		{`{"topic":"t","partitions":-1}`, nil, 400, "partitions, not -1", ""},
		{`{"topic":"t","partitions":65537}`, nil, 400, "1 to 65536 partitions", ""},
		{`{"topic":"t","replicas":17}`, nil, 400, "1 to 16 replicas, not 17", ""},
		{`{"topic":"t","replica":2}`, nil, 400, "unknown field", ""},
		{`{"topic":"t","replicas":5}`, fmt.Errorf("engine: 5 replicas: %w", meta.ErrTooFewNodes), 409, "5 replicas", "t 0 5"},
		{`{"topic":"t"}`, errs.ErrTooManyTopics, 409, "as many topics as", "t 0 0"},
		{`{"topic":"t"}`, errs.ErrClosed, 503, "closed", "t 0 0"},
	} {
		store, call := &fakeStore{shown: testSnapshot()}, ""
		create := func(_ context.Context, name string, partitions, replicas int) error {
			call = fmt.Sprint(name, " ", partitions, " ", replicas)
			if c.err == nil {
				store.shown.Names[name] = &meta.Topic{Name: name, Partitions: max(1, partitions), Replicas: 3}
				if replicas > 0 {
					store.shown.Names[name].Replicas = replicas
				}
			}
			return c.err
		}
		w := ask(Handler(store, Self{Name: "n2", Create: create}), "POST", "/cluster/create-topic", c.body)
		if got := sentence(t, w); w.Code != c.code || !strings.Contains(got, c.says) || call != c.call {
			t.Errorf("%s: %d %s, Create got %q", c.body, w.Code, got, call)
		}
	}
	h := Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2"})
	w := ask(h, "POST", "/cluster/create-topic", `{"topic":"t"}`)
	if w.Code != 404 {
		t.Errorf("a node that cannot: %d %s", w.Code, w.Body)
	}
}

// Status shows the racks, and warns of partitions that one rack can take away.
func TestRacksInStatus(t *testing.T) {
	s := testSnapshot()
	if st := shown(s, "n2"); st.OneRack != 0 || st.Nodes[0].Rack != "" {
		t.Errorf("without racks: %+v", st)
	}
	for id, n := range s.Nodes {
		named := *n
		named.Rack = map[bool]string{true: "a", false: "b"}[id <= 3]
		s.Nodes[id] = &named
	}
	if st := shown(s, "n2"); st.OneRack != 4 || st.Nodes[2].Rack != "a" || st.Nodes[3].Rack != "b" {
		t.Errorf("in racks: %+v", st)
	}
	for i, p := range topicsOf(s, allTrusting(), []*meta.Topic{s.Names["orders"]}).Topics[0].Partitions {
		if want := i < 4; p.OneRack != want {
			t.Errorf("partition %d: %v", i, p.OneRack)
		}
	}
}

func TestSetReplicas(t *testing.T) {
	for _, c := range []struct {
		body string
		err  error
		code int
		says string
	}{
		{`{"topic":"orders","replicas":3}`, nil, 200, "3 replicas of each partition from now on, and min_isr 2"},
		{`{"topic":"none","replicas":2}`, nil, 404, `no topic "none"`},
		{`{"topic":"orders"}`, nil, 400, "1 to 16 replicas, not 0"},
		{`{"topic":"orders","replicas":17}`, nil, 400, "not 17"},
		{`{"topic":"orders","replicas":9}`, fmt.Errorf("9: %w", meta.ErrTooFewNodes), 409, "ask for fewer"},
		{`{"topic":"orders","replicas":1}`, fmt.Errorf("%w: min_isr", meta.ErrReplicas), 409, "cannot have that many"},
	} {
		store := &fakeStore{shown: testSnapshot(), err: c.err}
		w := ask(Handler(store, Self{Name: "n2"}), "POST", "/cluster/set-replicas", c.body)
		if got := sentence(t, w); w.Code != c.code || !strings.Contains(got, c.says) {
			t.Errorf("%s: %d %s", c.body, w.Code, got)
		}
	}
}

// The answer to a transfer names the node that was chosen.
func TestTransferAnswer(t *testing.T) {
	for body, want := range map[string]string{
		`{"topic":"orders","partition":0}`: "n2: node n2 is to lead partition 0 of topic orders, and is preferred from now " +
			"on: node n1 hands over",
		`{"topic":"orders","partition":1,"to":"n2"}`: "n2: node n2 keeps leading partition 1 of topic orders, and is " +
			"preferred from now on",
	} {
		w := ask(Handler(&fakeStore{shown: testSnapshot()}, Self{Name: "n2"}), "POST", "/cluster/transfer-leader", body)
		var done Done
		if err := json.Unmarshal(w.Body.Bytes(), &done); err != nil || done.Leader+": "+done.Message != want {
			t.Errorf("%s: %d %s, %v", body, w.Code, w.Body, err)
		}
	}
}
