package metrics

import (
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"penstock/internal/node"
)

// A scrape of a node with 1000 topics of three channels.
func BenchmarkScrape(b *testing.B) {
	e, err := node.Open(b.Context(), node.Options{
		DataPath: b.TempDir(), IO: "pwrite", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	for i := range 1000 {
		topic, err := e.Topic(b.Context(), fmt.Sprintf("t%d", i))
		if err != nil {
			b.Fatal(err)
		}
		for channel := range 3 {
			if _, err := topic.CreateChannel(b.Context(), fmt.Sprintf("c%d", channel)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for name, most := range map[string]int{"series=10000": 10_000, "series=all": 100_000} {
		b.Run(name, func(b *testing.B) {
			h := New(Options{Engine: e, Version: "1", Started: time.Now(), MaxSeries: most}).Handler()
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
				size = w.Body.Len()
			}
			b.ReportMetric(float64(size), "response-bytes")
		})
	}
}
