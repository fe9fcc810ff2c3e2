package bench

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/node"
)

// BenchmarkPartitionsBesideOne alternates rounds of 64 waiting producers over 1000 partitions with rounds of the same
// producers at one partition, in two engines of one process, and reports the medians and their ratio. Rounds are long
// enough for both to write segments in each.
func BenchmarkPartitionsBesideOne(b *testing.B) {
	const producers, partitions = 64, 1000
	one, many := openEngine(b), openEngine(b)
	body := bytes.Repeat([]byte("x"), 100)
	put := func(ts []*node.Topic) func() error {
		var next atomic.Int64
		return func() error {
			_, err := ts[int(next.Add(1))%len(ts)].PublishMessage(context.Background(), node.Outgoing{Body: body})
			return err
		}
	}
	putOne, putMany := put(topics(b, one, 1)), put(topics(b, many, partitions))
	var ones, manys, ratio []float64
	for range max(b.N, 5) {
		x, _ := roundOf(2*time.Second/3, producers, putOne)
		y, _ := roundOf(2*time.Second/3, producers, putMany)
		ones, manys, ratio = append(ones, x), append(manys, y), append(ratio, y/x)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ones), "one-msg/s")
	b.ReportMetric(median(manys), "msg/s")
	b.ReportMetric(median(ratio), "ratio")
	st := many.Storage()
	b.ReportMetric(st.BatchesPerGroup, "msg/group")
	b.ReportMetric(st.FlushMeanMicros, "commit-µs")
}
