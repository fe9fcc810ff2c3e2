package engine_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"penstock/engine"
)

// quiet is the log of the examples. A program would let the engine log.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// check ends an example that cannot go on.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// exampleTopic opens an engine in a temporary directory, which the returned function removes. A program would name a
// lasting directory.
func exampleTopic(partitions int) (*engine.Topic, func()) {
	dir, err := os.MkdirTemp("", "example")
	check(err)
	e, err := engine.Open(context.Background(), engine.Options{Path: dir, Partitions: partitions, Logger: quiet})
	check(err)
	topic, err := e.Topic(context.Background(), "orders")
	check(err)
	return topic, func() {
		check(e.Close())
		check(os.RemoveAll(dir))
	}
}

// Open a data directory, store a message, close the engine.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(dir)
	e, err := engine.Open(ctx, engine.Options{Path: dir, Logger: quiet})
	check(err)
	defer e.Close()
	topic, err := e.Topic(ctx, "orders")
	check(err)
	id, err := topic.Publish(ctx, engine.Message{Body: []byte("one large tea")}) // on stable storage when it returns
	check(err)
	fmt.Println(id)
	// Output: 0000000000000000
}

// A batch is stored as a whole or not at all, in order, with consecutive ids.
func ExampleTopic_PublishBatch() {
	topic, done := exampleTopic(1)
	defer done()
	batch := []engine.Message{{Body: []byte("tea")}, {Body: []byte("milk")}, {Body: []byte("sugar")}}
	first, err := topic.PublishBatch(context.Background(), batch)
	check(err)
	for i, m := range batch {
		fmt.Println(first+engine.ID(i), string(m.Body))
	}
	// Output:
	// 0000000000000000 tea
	// 0000000000000001 milk
	// 0000000000000002 sugar
}

// PublishAsync keeps many messages on their way from one goroutine. The messages of one customer go to one partition.
func ExampleTopic_PublishAsync() {
	topic, done := exampleTopic(4)
	defer done()
	const n = 1000
	answers := make(chan error, n) // large enough: the function must not block
	for i := range n {
		check(topic.PublishAsync(engine.Message{
			Key:     fmt.Appendf(nil, "customer %d", i%10),
			Headers: []engine.Header{{Name: []byte("type"), Value: []byte("order")}},
			Body:    fmt.Appendf(nil, "order %d", i),
		}, func(_ engine.ID, err error) { answers <- err }))
	}
	for range n {
		check(<-answers)
	}
	fmt.Println(n, "messages are on stable storage")
	// Output: 1000 messages are on stable storage
}

// A handler's nil finishes the message; an error lets it come again.
func ExampleChannel_Consume() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	topic, done := exampleTopic(1)
	defer done()
	for _, body := range []string{"tea", "milk", "sugar"} {
		_, err := topic.Publish(ctx, engine.Message{Body: []byte(body)})
		check(err)
	}
	kitchen, err := topic.Channel(ctx, "kitchen")
	check(err)
	check(kitchen.Consume(ctx, engine.ConsumeOptions{}, func(_ context.Context, d *engine.Delivery) error {
		fmt.Println(d.ID, d.Attempts, string(d.Body))
		if string(d.Body) == "sugar" {
			cancel()
		}
		return nil
	}))
	// Output:
	// 0000000000000000 1 tea
	// 0000000000000001 1 milk
	// 0000000000000002 1 sugar
}

// Read replays what is kept, whatever channels have finished.
func ExampleTopic_Read() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	topic, done := exampleTopic(1)
	defer done()
	for i := range 3 {
		_, err := topic.Publish(ctx, engine.Message{Body: fmt.Appendf(nil, "order %d", i)})
		check(err)
	}
	check(topic.Read(ctx, 0, engine.FromID(1), func(d *engine.Delivery) error {
		fmt.Println(d.ID, string(d.Body))
		if d.ID == 2 {
			cancel()
		}
		return nil
	}))
	// Output:
	// 0000000000000001 order 1
	// 0000000000000002 order 2
}
