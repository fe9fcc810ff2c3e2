//go:build linux

package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"penstock/client"
)

// A message without a body is refused, and those that would share its batch are stored.
func TestRealEmptyMessageHarmsNoOther(t *testing.T) {
	m := startNodes(t, 1)
	p, err := dialNodes(t, m).Producer(within(t), "orders", client.ProducerOptions{Linger: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]error{}
	for _, body := range []string{"one", "", "two"} {
		p.Produce(context.Background(), &client.Message{Body: []byte(body)},
			func(m *client.Message, _ client.ID, err error) { told[string(m.Body)] = err })
	}
	if err := p.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	if told["one"] != nil || told["two"] != nil || !errors.Is(told[""], client.ErrRefused) || len(told) != 3 {
		t.Errorf("%v", told)
	}
}
