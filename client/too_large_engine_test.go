//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"penstock/client"
	"penstock/internal/node"
)

// A message beyond a limit of the node is refused, and the others that share its batch are stored.
func TestRealNodeRefusesOnlyTheLarge(t *testing.T) {
	nodes := startNodes(t, 1, func(o *node.Options) { o.MaxMessageBytes, o.MaxHeaderBytes = 1000, 500 })
	c := dialNodes(t, nodes)
	p, err := c.Producer(within(t), "orders", client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes[0].stop() // so that the messages share a batch
	refused, stored := 0, 0
	for i := range 100 {
		m := &client.Message{Body: []byte("small")}
		large := true
		switch i {
		case 20:
			m.Body = make([]byte, 1001)
		case 70:
			m.Headers = []client.Header{{Key: []byte("name"), Value: bytes.Repeat([]byte("v"), 500)}}
		default:
			large = false
		}
		p.Produce(context.Background(), m, func(_ *client.Message, id client.ID, err error) {
			switch {
			case large && errors.Is(err, client.ErrTooLarge):
				refused++
			case !large && err == nil && int(id.MsgID()) == stored:
				stored++
			default:
				t.Errorf("message %d: %v, %v", i, id, err)
			}
		})
	}
	nodes[0].start()
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if refused != 2 || stored != 98 {
		t.Errorf("%d were refused, %d stored", refused, stored)
	}
}
