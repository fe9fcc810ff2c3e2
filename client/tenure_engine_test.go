//go:build linux

package client_test

import (
	"errors"
	"sync"
	"testing"

	"penstock/client"
	"penstock/internal/node"
	"penstock/internal/node/errs"
)

// namedProducer opens a producer of the topic orders with the name import, whose messages go to the partition that
// their header says.
func namedProducer(t *testing.T, m *realNode) (*client.Producer, error) {
	t.Helper()
	return dialNodes(t, []*realNode{m}).Producer(within(t), "orders", client.ProducerOptions{
		Name: "import", Partition: func(m *client.Message, _ int) int { return int(m.Body[0] - '0') },
	})
}

// raise gives the topic orders more partitions.
func raise(t *testing.T, m *realNode, partitions int) {
	t.Helper()
	topic, ok := m.e.Catalog().LookupTopic("orders")
	if !ok {
		t.Fatal("there is no topic orders")
	}
	s := topic.Settings()
	s.Partitions = partitions
	if _, err := topic.ConfigureAs(within(t), "", s); err != nil {
		t.Fatal(err)
	}
}

// Of two programs with one name the later one holds all partitions, also those that the topic gets afterwards, whoever
// comes to them first; the earlier one ends as a whole.
func TestNameIsOnePrograms(t *testing.T) {
	m := startNodes(t, 1)[0]
	if _, err := m.e.CreateTopic(within(t), "orders", 2); err != nil {
		t.Fatal(err)
	}
	older, err := namedProducer(t, m)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := namedProducer(t, m)
	if err != nil {
		t.Fatal(err)
	}
	raise(t, m, 3)
	for _, p := range []*client.Producer{older, newer} {
		eventually(t, "the producer knows the new partition", func() bool { return p.Partitions() == 3 })
	}
	for i, body := range []string{"2 older", "0 older", "2 older"} { // the newer one has not come to the new partition
		_, err := older.ProduceSync(within(t), &client.Message{Body: []byte(body)})
		if i > 0 && !errors.Is(err, client.ErrFenced) || i == 0 && err != nil {
			t.Errorf("%d, %s: %v", i, body, err)
		}
	}
	for _, body := range []string{"2 newer", "0 newer", "1 newer", "2 newer"} {
		if _, err := newer.ProduceSync(within(t), &client.Message{Body: []byte(body)}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{"2 older", "0 older", "1 older", "2 older"} {
		if _, err := older.ProduceSync(within(t), &client.Message{Body: []byte(body)}); !errors.Is(err, client.ErrFenced) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := newer.ProduceSync(within(t), &client.Message{Body: []byte("2 newer")}); err != nil {
		t.Errorf("the newer program after the older one has tried: %v", err)
	}
}

// When programs open a name at the same time, one of them holds it at all partitions.
func TestNameOpenedAtOnce(t *testing.T) {
	m := startNodes(t, 1)[0]
	const partitions, programs = 8, 4
	if _, err := m.e.CreateTopic(within(t), "orders", partitions); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		var all [programs]*client.Producer
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				p, err := namedProducer(t, m)
				if err != nil && !errors.Is(err, client.ErrFenced) {
					t.Error(err)
				}
				all[i] = p
			})
		}
		wg.Wait()
		holders := 0
		for _, p := range all {
			if p == nil {
				continue
			}
			stored := 0
			for at := range partitions {
				switch _, err := p.ProduceSync(within(t), &client.Message{Body: []byte{byte('0' + at)}}); {
				case err == nil:
					stored++
				case !errors.Is(err, client.ErrFenced):
					t.Error(err)
				}
			}
			if stored == partitions {
				holders++
			} else if stored > 0 {
				t.Errorf("a program holds %d of %d partitions", stored, partitions)
			}
		}
		if holders != 1 {
			t.Errorf("%d programs hold the name", holders)
		}
	}
}

// A program whose clock is days ahead does not keep its name from the next one.
func TestNameOfAProgramWhoseClockIsAhead(t *testing.T) {
	m := startNodes(t, 1)[0]
	topic, err := m.e.CreateTopic(within(t), "orders", 2)
	if err != nil {
		t.Fatal(err)
	}
	var p node.Producer
	eventually(t, "the name is opened", func() bool {
		p, err = topic.HoldProducer(within(t), 1, "import", 1<<62)
		return err == nil
	})
	next, err := namedProducer(t, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"0", "1"} {
		if _, err := next.ProduceSync(within(t), &client.Message{Body: []byte(body)}); err != nil {
			t.Errorf("partition %s: %v", body, err)
		}
	}
	if _, err := topic.HoldProducer(within(t), 1, "import", p.Tenure+1); !errors.Is(err, errs.ErrFenced) {
		t.Errorf("the program before opens its name again: %v", err)
	}
}
