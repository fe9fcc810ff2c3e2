//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"penstock/client"
	"penstock/internal/node"
	"penstock/internal/server/native"
)

// exampleNode starts a node for an example. Programs use the address of a node that runs elsewhere.
func exampleNode() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	e, err := node.Open(context.Background(), node.Options{DataPath: dir, Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s, err := native.Listen(e, native.Options{Listener: ln, Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	return ln.Addr().String(), func() {
		err := errors.Join(s.Shutdown(context.Background()), <-served, e.Close(), os.RemoveAll(dir))
		if err != nil {
			log.Fatal(err)
		}
	}
}

// Publish a few messages, and wait until they are stored.
func Example() {
	address, stop := exampleNode()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{address}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	p, err := c.Producer(ctx, "orders", client.ProducerOptions{Compression: client.CompressS2})
	if err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		m := &client.Message{Key: []byte("customer 7"), Body: fmt.Appendf(nil, "order %d", i)}
		p.Produce(ctx, m, func(m *client.Message, id client.ID, err error) {
			if err != nil {
				log.Printf("%s: %v", m.Body, err)
				return
			}
			fmt.Printf("%s is stored as message %d of partition %d\n", m.Body, id.MsgID(), id.Partition())
		})
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order 0 is stored as message 0 of partition 0
	// order 1 is stored as message 1 of partition 0
	// order 2 is stored as message 2 of partition 0
}

// Import a list of lines. Run again after a crash, it goes on behind the last line that is stored, and stores each line
// once.
func ExampleProducer_LastSequence() {
	address, stop := exampleNode()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	importLines := func(lines ...string) {
		c, err := client.Dial(ctx, []string{address}, client.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		p, err := c.Producer(ctx, "lines", client.ProducerOptions{
			Name: "import", Partition: func(*client.Message, int) int { return 0 }, StopAtFailure: true,
		})
		if err != nil {
			log.Fatal(err)
		}
		if last, ok := p.LastSequence(0); ok {
			lines = lines[min(int(last)+1, len(lines)):]
		}
		fmt.Printf("to import: %q\n", lines)
		for _, line := range lines {
			if _, err := p.ProduceSync(ctx, &client.Message{Body: []byte(line)}); err != nil {
				log.Fatal(err) // after ErrUnknown, too: the next run asks which line was the last
			}
		}
	}
	importLines("first", "second")
	importLines("first", "second", "third")
	// Output:
	// to import: ["first" "second"]
	// to import: ["third"]
}

// Read a partition from a stored position on. If the position is stored together with what was made of the messages, in
// one transaction, each message counts exactly once.
func ExampleClient_Reader() {
	address, stop := exampleNode()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{address}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	p, err := c.Producer(ctx, "orders", client.ProducerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for i := range 5 {
		if _, err := p.ProduceSync(ctx, &client.Message{Body: fmt.Appendf(nil, "order %d", i)}); err != nil {
			log.Fatal(err)
		}
	}

	position := client.ID(3) // as stored by the run before
	r, err := c.Reader(ctx, "orders", 0, client.FromID(position))
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		var gone *client.TrimmedError
		switch {
		case errors.As(err, &gone):
			log.Printf("messages before %v are gone", gone.First)
			continue
		case err != nil:
			log.Fatal(err)
		}
		position, _ = r.Position()
		fmt.Printf("%s; the next one is message %d\n", m.Body, position.MsgID())
		if newest, ok := r.Newest(); ok && position >= newest {
			break
		}
	}
	// Output:
	// order 3; the next one is message 4
	// order 4; the next one is message 5
}

// Consume a channel: handle what is there, and finish it at once. Whoever handles a message twice, because a node
// failed at the wrong moment, does no harm if the message's ID is stored beside the result.
func ExampleClient_Consumer() {
	address, stop := exampleNode()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{address}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	produceOrders(ctx, c, 5)

	s, err := c.Consumer(ctx, "orders", "billing", client.ConsumerOptions{From: client.FromOldest()})
	if err != nil {
		log.Fatal(err)
	}
	for handled := 0; handled < 5; {
		batch, err := s.Batch(ctx, 100)
		if err != nil {
			log.Fatal(err)
		}
		for i := range batch {
			fmt.Printf("%s\n", batch[i].Body)
		}
		if err := batch[len(batch)-1].FinishThrough(); err != nil {
			log.Print(err) // it came too late: they are delivered again
		}
		handled += len(batch)
	}
	// Close waits until the cluster has stored what was finished. A program that must know earlier calls Sync.
	if err := s.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order 0
	// order 1
	// order 2
	// order 3
	// order 4
}

// Handle messages with several goroutines. A message that cannot be handled now goes back to the channel.
func ExampleDelivery_Requeue() {
	address, stop := exampleNode()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{address}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	produceOrders(ctx, c, 20)

	s, err := c.Consumer(ctx, "orders", "billing", client.ConsumerOptions{MaxInFlight: 8, From: client.FromOldest()})
	if err != nil {
		log.Fatal(err)
	}
	handle := func(d *client.Delivery) error {
		if d.Attempts == 1 && string(d.Body) == "order 7" {
			return errors.New("the database is busy")
		}
		return nil
	}
	var left atomic.Int32
	left.Store(20)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				d, err := s.Next(ctx)
				if errors.Is(err, client.ErrClosed) {
					return
				}
				if err != nil {
					log.Fatal(err)
				}
				if err := handle(&d); err != nil {
					fmt.Printf("%s: %v\n", d.Body, err)
					if err := d.Requeue(10 * time.Millisecond); err != nil {
						log.Print(err)
					}
					continue
				}
				if err := d.Finish(); err != nil {
					log.Print(err)
				}
				if left.Add(-1) == 0 {
					fmt.Println("all are handled:", s.Close(ctx)) // Next returns ErrClosed from now on
				}
			}
		})
	}
	workers.Wait()
	// Output:
	// order 7: the database is busy
	// all are handled: <nil>
}

func produceOrders(ctx context.Context, c *client.Client, n int) {
	p, err := c.Producer(ctx, "orders", client.ProducerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for i := range n {
		p.Produce(ctx, &client.Message{Body: fmt.Appendf(nil, "order %d", i)}, nil)
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
}
