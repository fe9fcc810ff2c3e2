//go:build linux

package clientotel_test

import (
	"context"
	"fmt"
	"log"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"penstock/client"
	clientotel "penstock/client/otel"
)

// Send a message in a request, and process it elsewhere in the same trace.
func Example() {
	address, stop := startNode()
	defer stop()

	exporter := tracetest.NewInMemoryExporter() // a program exports to a collector
	tracers := sdk.NewTracerProvider(sdk.WithSyncer(exporter))
	telemetry, err := clientotel.New(clientotel.Options{TracerProvider: tracers})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, []string{address}, client.Options{Hooks: telemetry.Hooks(client.Hooks{})})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	p, err := c.Producer(ctx, "orders", client.ProducerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	request, span := tracers.Tracer("shop").Start(ctx, "POST /orders")
	if _, err := telemetry.Producer(p).ProduceSync(request, &client.Message{Body: []byte("order 7")}); err != nil {
		log.Fatal(err)
	}
	span.End()

	r, err := c.Reader(ctx, "orders", 0, client.FromOldest())
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	m, err := r.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, end := telemetry.Process(ctx, r.Topic(), "", &m) // pass the context on to what handles the message
	end(nil)

	for _, s := range exporter.GetSpans() {
		fmt.Println(s.Name, s.SpanKind, s.SpanContext.TraceID() == span.SpanContext().TraceID())
	}
	// Output:
	// send orders producer true
	// POST /orders internal true
	// process orders consumer true
}
