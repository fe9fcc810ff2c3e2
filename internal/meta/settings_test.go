package meta

import "testing"

// A min_isr that follows from the replicas is not fixed by whoever reads the settings and sends them back with another
// retention, nor by more partitions: with more replicas it is their majority again. One that the topic was made with
// stays.
func TestMajorityStaysMajority(t *testing.T) {
	sentBack := func(topic *Topic) TopicSettings { return topic.EffectiveSettings() }
	for name, next := range map[string]func(*Topic) TopicSettings{"set": sentBack, "expanded": (*Topic).Expanded} {
		for _, made := range []struct{ minISR, then int }{{2, 3}, {1, 1}, {3, 3}} {
			topic := &Topic{Name: "t", Partitions: 1, Replicas: 3, MinISR: made.minISR}
			topic.Settings = next(topic)
			topic.Settings.Version = 1
			if more, err := topic.WithReplicas(5); err != nil || more.MinISR != made.then {
				t.Errorf("%s, made with min_isr %d of 3: %+v, %v; with 5 replicas %d is wanted",
					name, made.minISR, more, err, made.then)
			}
		}
	}
}
