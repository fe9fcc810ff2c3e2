//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"penstock/client"
	"penstock/engine"
	"penstock/native"
)

// exampleNode starts a node for an example. Programs use the address of a node that runs elsewhere.
func exampleNode() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.Open(context.Background(), engine.Options{DataPath: dir, Logger: quiet})
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
