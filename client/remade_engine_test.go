//go:build linux

package client_test

import (
	"errors"
	"strings"
	"testing"

	"penstock/client"
)

// A topic that is deleted and created again is another one. Producers, consumers and readers that were opened before
// end with an error that says so, and not that there is no such topic; new ones work.
func TestRealTopicIsMadeAgain(t *testing.T) {
	nodes := startNodes(t, 1)
	c := dialNodes(t, nodes)
	for round := range 2 {
		p, err := c.Producer(within(t), "orders", client.ProducerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		k := consumer(t, c, client.ConsumerOptions{})
		r, err := c.Reader(within(t), "orders", 0, client.FromOldest())
		if err != nil {
			t.Fatal(err)
		}
		m := &client.Message{Body: []byte("x")}
		calls := map[string]func() error{
			"produce": func() error { _, err := p.ProduceSync(within(t), m); return err },
			"consume": func() error { _, err := k.Next(within(t)); return err },
			"read":    func() error { _, err := r.Next(within(t)); return err },
		}
		for _, what := range []string{"produce", "consume", "read"} {
			if err := calls[what](); err != nil {
				t.Fatalf("round %d: %s: %v", round, what, err)
			}
		}
		if err := nodes[0].e.DeleteTopic(within(t), "orders"); err != nil {
			t.Fatal(err)
		}
		if _, err := nodes[0].e.CreateTopic(within(t), "orders", 1); err != nil {
			t.Fatal(err)
		}
		for what, call := range calls {
			eventually(t, what+" says that the topic is another one", func() bool {
				err := call()
				if !errors.Is(err, client.ErrNoTopic) {
					t.Fatalf("round %d: %s: %v", round, what, err)
				}
				return strings.Contains(err.Error(), "orders was deleted, and another one has its name now")
			})
		}
		_ = p.Close(within(t))
		_ = k.Close(within(t))
		r.Close()
	}
}
