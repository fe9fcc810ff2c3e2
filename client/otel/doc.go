// Package clientotel tells OpenTelemetry what a program does with package client: which messages it sends and processes
// (traces), how many and how long that takes (metrics). It is a module of its own, so that package client needs nothing
// of OpenTelemetry.
//
// A trace goes with a message: the headers traceparent and tracestate (W3C Trace Context) say which span sent it, and
// the span of whoever processes it names that one. Clients of NSQ which write and read these headers take part.
// Names of spans, attributes and instruments are those of the semantic conventions for messaging of OpenTelemetry;
// messaging.system is "penstock".
//
// # How to use it
//
//	telemetry, err := clientotel.New(clientotel.Options{})
//	c, err := client.Dial(ctx, seeds, client.Options{Hooks: telemetry.Hooks(client.Hooks{})}) // metrics
//	p, err := c.Producer(ctx, "orders", client.ProducerOptions{})
//	orders := telemetry.Producer(p) // spans of what is sent
//	id, err := orders.ProduceSync(ctx, &client.Message{Body: body})
//
//	m, err := reader.Next(ctx)
//	ctx, end := telemetry.Process(ctx, reader.Topic(), "", &m) // a span of what is done with m
//	err = handle(ctx, m)
//	end(err)
//
// A consumer's delivery d is processed in the same way:
//
//	ctx, end := telemetry.Process(ctx, consumer.Topic(), consumer.Channel(), &d.Message)
//
// # What it costs
//
// Each message that is sent or processed makes a span, and about 100 bytes of headers are stored with it. For a crowd
// of small messages use Hooks alone, which count whole batches, or a sampler.
package clientotel
