package node_test

import (
	"context"
	"fmt"
	"testing"

	"penstock/internal/node"
	"penstock/tests/support/faultaio"
)

// A consumer of one partition gets the messages of this partition in their order, and no others. Other messages go to
// the consumers that take them.
func TestConsumerOfOnePartition(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := node.Open(ctx, smallOptions(faultaio.New(faultaio.Options{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	topic, err := e.CreateTopic(ctx, "t", 2)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := topic.CreateChannel(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	const each = 20
	for i := range each {
		for part := range 2 {
			done := make(chan error, 1)
			put := &node.Put{Messages: [][]byte{fmt.Append(nil, part, "-", i)}, Done: func(p *node.Put) { done <- p.Err }}
			if err := topic.SubmitTo(part, put); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	one := uint32(1)
	got := make(chan node.Delivery, 2*each)
	k, err := ch.Attach(node.ConsumerOptions{Partition: &one}, deliveries(got))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Ready(2 * each); err != nil {
		t.Fatal(err)
	}
	k.Pump()
	for i := range each {
		d := <-got
		if d.ID.Partition() != 1 || int(d.ID.MsgID()) != i {
			t.Fatalf("delivery %d is %v", i, d.ID)
		}
	}
	k.Pump()
	if len(got) != 0 {
		t.Errorf("%d more came", len(got))
	}
	all, err := ch.Attach(node.ConsumerOptions{}, deliveries(got))
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Ready(2 * each); err != nil {
		t.Fatal(err)
	}
	k.Close() // its messages in flight go to the other consumer
	all.Pump()
	count := [2]int{}
	for range 2 * each {
		d := <-got
		count[d.ID.Partition()]++
		if want := 1 + uint16(d.ID.Partition()); d.Attempts != want {
			t.Errorf("%v comes for the %d. time", d.ID, d.Attempts)
		}
	}
	if count != [2]int{each, each} {
		t.Errorf("then %v came", count)
	}
}

// deliveries is a sink that keeps its deliveries, without bodies.
type deliveries chan node.Delivery

func (s deliveries) Deliver(d *node.Delivery) bool {
	s <- node.Delivery{ID: d.ID, Attempts: d.Attempts}
	return true
}
func (s deliveries) Flush()       {}
func (s deliveries) Closed(error) {}
