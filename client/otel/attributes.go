package clientotel

import (
	"errors"
	"net"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"penstock/client"
)

// errorTypes are the values of error.type, the first that matches counts. ErrUnknown is the first because it says most
// about the data: an error may match several.
var errorTypes = []struct {
	err  error
	name string
}{
	{client.ErrUnknown, "unknown"},
	{client.ErrFenced, "fenced"},
	{client.ErrTooLarge, "too_large"},
	{client.ErrUnauthorized, "unauthorized"},
	{client.ErrSequence, "sequence"},
	{client.ErrStopped, "stopped"},
	{client.ErrNoTopic, "no_topic"},
	{client.ErrRefused, "refused"},
	{client.ErrBuffered, "buffered"},
	{client.ErrNoLeader, "no_leader"},
	{client.ErrClosed, "closed"},
	{client.ErrDamaged, "damaged"},
}

// errorType is a name for an error, of which there are few.
func errorType(err error) string {
	for i := range errorTypes {
		if errors.Is(err, errorTypes[i].err) {
			return errorTypes[i].name
		}
	}
	return semconv.ErrorTypeOther.Value.AsString()
}

func partitionAttribute(partition int) attribute.KeyValue {
	return semconv.MessagingDestinationPartitionID(strconv.Itoa(partition))
}

func serverAttributes(address string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return []attribute.KeyValue{semconv.ServerAddress(address)}
	}
	attributes := []attribute.KeyValue{semconv.ServerAddress(host)}
	if n, err := strconv.Atoi(port); err == nil {
		attributes = append(attributes, semconv.ServerPort(n))
	}
	return attributes
}
