package clientotel

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"penstock/client"
)

// Producer is a client.Producer whose messages carry their trace. Each message gets a span of kind producer, a child of
// the span in the ctx of Produce, which ends when it is known whether the message is stored.
type Producer struct {
	*client.Producer
	t     *Telemetry
	start []trace.SpanStartOption
	name  string // of the spans
}

// Producer returns p with traces. Closing either closes both.
func (t *Telemetry) Producer(p *client.Producer) *Producer {
	return &Producer{
		Producer: p, t: t, name: sendName + " " + p.Topic(),
		start: []trace.SpanStartOption{
			trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(sendName),
				semconv.MessagingOperationTypeSend, semconv.MessagingDestinationName(p.Topic())),
		},
	}
}

// Produce is Produce of client.Producer. The trace replaces one that m's headers have, in what is stored: m itself
// stays as it is, and done gets it. A message that has no room for the headers of the trace (client.MaxHeaderCount) is
// produced without them.
func (p *Producer) Produce(ctx context.Context, m *client.Message, done func(*client.Message, client.ID, error)) {
	own, told := p.begin(ctx, m, done)
	p.Producer.Produce(ctx, own, told)
}

// TryProduce is TryProduce of client.Producer; ctx only has the span that the message's span is a child of.
func (p *Producer) TryProduce(ctx context.Context, m *client.Message, done func(*client.Message, client.ID, error)) {
	own, told := p.begin(ctx, m, done)
	p.Producer.TryProduce(own, told)
}

// ProduceSync is ProduceSync of client.Producer.
func (p *Producer) ProduceSync(ctx context.Context, m *client.Message) (client.ID, error) {
	own, told := p.begin(ctx, m, nil)
	id, err := p.Producer.ProduceSync(ctx, own)
	told(own, id, err)
	return id, err
}

// begin starts the span of a message. It returns a copy of m with the trace in its headers, and the function that ends
// the span and calls done.
func (p *Producer) begin(ctx context.Context, m *client.Message, done func(*client.Message, client.ID, error)) (
	own *client.Message, told func(*client.Message, client.ID, error),
) {
	ctx, span := p.t.tracer.Start(ctx, p.name, p.start...)
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingMessageBodySize(len(m.Body)))
	}
	own = new(*m)
	p.t.inject(ctx, own)
	return own, func(_ *client.Message, id client.ID, err error) {
		if span.IsRecording() {
			if err == nil {
				span.SetAttributes(semconv.MessagingMessageID(id.String()), partitionAttribute(int(id.Partition())))
			}
			failed(span, err)
		}
		span.End()
		if done != nil {
			done(m, id, err)
		}
	}
}

// inject writes the span of ctx into the headers of m, whose own slice stays as it is.
func (t *Telemetry) inject(ctx context.Context, m *client.Message) {
	headers := headers{slices.Clone(m.Headers)}
	t.propagator.Inject(ctx, &headers)
	room := client.MaxHeaderCount
	if m.Key != nil {
		room--
	}
	if len(headers.all) <= room {
		m.Headers = headers.all
	}
}

// failed says in the span that the operation failed, if it did.
func failed(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
	}
}
