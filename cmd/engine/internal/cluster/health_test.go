package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// The wait for health ends with the context, and the last verdict counts.
func TestAwaitHealthEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ill := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"health":"unhealthy: a tooth aches"}`))
		time.AfterFunc(2*healthPoll, cancel)
	}))
	defer ill.Close()
	asks := new(operator)
	asks.Client.Address = ill.URL
	if v, err := asks.awaitHealth(ctx, time.Minute); err != nil || v.Health != "unhealthy: a tooth aches" {
		t.Errorf("%+v, %v", v, err)
	}
}
