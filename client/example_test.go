package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"penstock/client"
)

// Publish a few messages and wait until they are stored.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{"127.0.0.1:4250"}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	p, err := c.Producer(ctx, "orders", client.ProducerOptions{Compression: client.CompressS2})
	if err != nil {
		log.Fatal(err)
	}
	for i := range 1000 {
		m := &client.Message{Key: []byte("customer 7"), Body: fmt.Appendf(nil, "order %d", i)}
		p.Produce(ctx, m, func(m *client.Message, id client.ID, err error) {
			if err != nil {
				log.Printf("order %s: %v", m.Body, err) // m's bytes are still those that were produced
			}
		})
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}
}

// Import the lines of a file. Run again after a crash, it goes on behind the last line that is stored.
func ExampleProducer_LastSequence() {
	ctx := context.Background()
	c, err := client.Dial(ctx, []string{"127.0.0.1:4250"}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	p, err := c.Producer(ctx, "lines", client.ProducerOptions{
		Name: "import of 2026", Partition: func(*client.Message, int) int { return 0 },
	})
	if err != nil {
		log.Fatal(err)
	}
	lines := []string{"first", "second", "third"}
	if last, ok := p.LastSequence(0); ok {
		lines = lines[min(int(last)+1, len(lines)):]
	}
	for _, line := range lines {
		if _, err := p.ProduceSync(ctx, &client.Message{Body: []byte(line)}); err != nil {
			log.Fatal(err) // after ErrUnknown, too: the next run asks which line was the last
		}
	}
}

// Read a partition from a stored position on. Storing the position together with what was made of the message, in one
// transaction, counts each message exactly once.
func ExampleClient_Reader() {
	ctx := context.Background()
	c, err := client.Dial(ctx, []string{"127.0.0.1:4250"}, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	var position client.ID // as stored by the run before; 0: none
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
		next, _ := r.Position()
		fmt.Printf("%s; go on at %v\n", m.Body, next)
	}
}
