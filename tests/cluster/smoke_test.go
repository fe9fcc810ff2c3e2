package cluster

import (
	"fmt"
	"testing"

	"penstock/tests/cluster/harness"
	"penstock/tests/cluster/workload"
)

// B17, B81 in short, for every test run: three nodes, the leader dies under load and comes back, nothing is lost, the
// replicas are the same. The long ones have the build tag `cluster`.
func TestLeaderDies(t *testing.T) {
	s := prepare(t, three, harness.Options{})
	s.run.Consume(workload.Consumer{Name: "c-a", Channel: "a"})
	s.try(s.run.ConsumeGoNSQ(workload.Consumer{Name: "c-b", Channel: "b"}))
	for i := range s.c.Nodes {
		s.run.Produce(workload.Producer{
			Name: fmt.Sprintf("p%d", i+1), Addresses: rotated(s.run.Nodes, i), PerSecond: 200, AnswerTimeout: answerTimeout,
		})
	}
	s.acks(200)
	s.crash("kill leader", s.leader(0), func() { s.acks(200) })
	s.healthy()
	s.finish()
}
