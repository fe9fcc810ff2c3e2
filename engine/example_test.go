package engine_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"penstock/engine"
)

// exampleEngine opens an engine in a temporary directory, which the returned function removes. A program would name a
// lasting directory.
func exampleEngine() (*engine.Engine, func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.Open(context.Background(), engine.Options{
		DataPath: dir, Logger: quiet,
	})
	if err != nil {
		log.Fatal(err)
	}
	return e, func() {
		if err := e.Close(); err != nil {
			log.Print(err)
		}
		os.RemoveAll(dir)
	}
}

// Open a data directory, store a message, close the engine.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	e, err := engine.Open(ctx, engine.Options{DataPath: dir, Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	topic, err := e.Topic(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	id, err := topic.Publish(ctx, []byte("one large tea")) // when it returns, the message is on stable storage
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
	if err := e.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: 0000000000000000
}

// A batch is stored as a whole or not at all, in order, with consecutive ids.
func ExampleTopic_PublishBatch() {
	ctx := context.Background()
	e, done := exampleEngine()
	defer done()
	topic, err := e.Topic(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	bodies := [][]byte{[]byte("tea"), []byte("milk"), []byte("sugar")}
	first, err := topic.PublishBatch(ctx, bodies)
	if err != nil {
		log.Fatal(err)
	}
	for i, b := range bodies {
		fmt.Println(first+engine.ID(i), string(b))
	}
	// Output:
	// 0000000000000000 tea
	// 0000000000000001 milk
	// 0000000000000002 sugar
}

// PublishAsync keeps many messages on their way from one goroutine. The messages of one customer go to one partition.
func ExampleTopic_PublishAsync() {
	ctx := context.Background()
	e, done := exampleEngine()
	defer done()
	topic, err := e.CreateTopic(ctx, "orders", 4)
	if err != nil {
		log.Fatal(err)
	}
	const n = 1000
	answers := make(chan error, n) // large enough: the callback must not block
	for i := range n {
		m := engine.Outgoing{
			Key:     fmt.Appendf(nil, "customer %d", i%10),
			Headers: []engine.Header{{Key: []byte("type"), Value: []byte("order")}},
			Body:    fmt.Appendf(nil, "order %d", i),
		}
		if err := topic.PublishAsync(m, func(_ engine.ID, err error) { answers <- err }); err != nil {
			log.Fatal(err)
		}
	}
	for range n {
		if err := <-answers; err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(n, "messages are on stable storage")
	// Output: 1000 messages are on stable storage
}

// A handler's nil confirms the message; an error makes it come again.
func ExampleChannel_Consume() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, done := exampleEngine()
	defer done()
	topic, err := e.Topic(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for _, body := range []string{"tea", "milk", "sugar"} {
		if _, err := topic.Publish(ctx, []byte(body)); err != nil {
			log.Fatal(err)
		}
	}
	kitchen, err := topic.Channel(ctx, "kitchen")
	if err != nil {
		log.Fatal(err)
	}
	err = kitchen.Consume(ctx, engine.ConsumeOptions{}, func(_ context.Context, m *engine.Message) error {
		fmt.Println(m.ID, m.Attempts, string(m.Body))
		if string(m.Body) == "sugar" {
			cancel()
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0000000000000000 1 tea
	// 0000000000000001 1 milk
	// 0000000000000002 1 sugar
}

// A program takes messages at its own pace, and works on several at a time. What it does not finish comes again.
func ExampleChannel_Open() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, done := exampleEngine()
	defer done()
	topic, err := e.Topic(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := topic.PublishBatch(ctx, [][]byte{[]byte("tea"), []byte("milk"), []byte("sugar")}); err != nil {
		log.Fatal(err)
	}
	kitchen, err := topic.Channel(ctx, "kitchen")
	if err != nil {
		log.Fatal(err)
	}
	messages, err := kitchen.Open(ctx, engine.ConsumeOptions{MaxInFlight: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer messages.Close()
	var tea, milk engine.Message // each has memory for one message
	for _, m := range []*engine.Message{&tea, &milk} {
		if err := messages.Next(ctx, m); err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.ID, m.Attempts, string(m.Body))
	}
	if err := tea.Requeue(0); err != nil { // again, please
		log.Fatal(err)
	}
	if err := milk.Finish(); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		m := &tea // its bytes are not needed any more
		if err := messages.Next(ctx, m); err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.ID, m.Attempts, string(m.Body))
		if err := m.Finish(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 0000000000000000 1 tea
	// 0000000000000001 1 milk
	// 0000000000000000 2 tea
	// 0000000000000002 1 sugar
}
