package clientotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"penstock/client"
)

// Extract returns ctx with the span that sent the message as its remote span, if m's headers have a trace.
func (t *Telemetry) Extract(ctx context.Context, m *client.Message) context.Context {
	return t.propagator.Extract(ctx, &headers{m.Headers})
}

// Process starts a span of kind consumer for what the program does with a message of the topic, from a Reader (channel
// is "") or a channel. The span is linked to the one that sent the message. It is a child of ctx's span, or, if ctx has
// none, of the one that sent the message. It returns ctx with the new span, and a function to call once, with the
// outcome, when the message was processed. That records the time, as messaging.process.duration.
func (t *Telemetry) Process(ctx context.Context, topic, channel string, m *client.Message) (
	in context.Context, end func(error),
) {
	began := time.Now()
	sender := trace.SpanContextFromContext(t.Extract(context.Background(), m))
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if sender.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: sender}))
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = t.Extract(ctx, m) // not only the span: a propagator may have more, such as baggage
	}
	in, span := t.tracer.Start(ctx, processName+" "+topic, options...)
	about := []attribute.KeyValue{
		semconv.MessagingOperationTypeProcess, semconv.MessagingDestinationName(topic),
		partitionAttribute(int(m.ID.Partition())),
	}
	if channel != "" {
		about = append(about, semconv.MessagingDestinationSubscriptionName(channel))
	}
	if span.IsRecording() {
		span.SetAttributes(about...)
		span.SetAttributes(semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(processName),
			semconv.MessagingMessageID(m.ID.String()), semconv.MessagingMessageBodySize(len(m.Body)))
	}
	return in, func(err error) {
		failed(span, err)
		span.End()
		if err != nil {
			about = append(about, semconv.ErrorTypeKey.String(errorType(err)))
		}
		t.processTime.Record(in, time.Since(began).Seconds(), processName, system, about...)
	}
}
