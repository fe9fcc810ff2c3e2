package server

import (
	"fmt"
	"testing"

	"penstock/internal/meta"
	"penstock/internal/node/errs"
	"penstock/internal/server/api"
	"penstock/tests/support/nsqtest"
)

// TestTopicSettingsHTTP B87
func TestTopicSettingsHTTP(t *testing.T) {
	t.Parallel()
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 2)
		last := nodes[len(nodes)-1]
		const path = "/topic/settings?topic=t"
		var s meta.TopicSettings
		last.ask(t, "GET", path, "", &s)
		if s.Version != 0 {
			t.Fatalf("settings that nobody made: %+v", s)
		}
		nodes[0].ask(
			t, "POST", path,
			`{"version":0,"retention_bytes":1000000,"retention_age_ms":60000,"quota_count":2,"quota_mode":"reject","min_isr":1}`,
			&s,
		)
		if s.Version != 1 || s.QuotaCount != 2 {
			t.Fatalf("got %+v", s)
		}
		for _, n := range nodes {
			nsqtest.Eventually(t, "the node to have them", func() bool {
				var got meta.TopicSettings
				n.ask(t, "GET", path, "", &got)
				return got == s
			})
			n.refused(t, "POST", path, `{"version":0}`, 409, sentence(errs.ErrVersion))
		}
		last.refused(t, "POST", path, `{"version":1,"quota_mode":"panic"}`, 400, "quota")
		last.refused(t, "POST", path, `{"version":1,"quota":1}`, 400, "quota")
		last.refused(t, "POST", path, `{"version":1,"partitions":"x"}`, 400, "(partitions is a string, and must be a whole ")
		last.refused(t, "GET", "/topic/settings?topic=none", "", 404, "TOPIC_NOT_FOUND")
		last.refused(t, "GET", "/topic/settings", "", 400, "MISSING_ARG_TOPIC")
		full := false
		for range 10 {
			if code, _ := last.do(t, "POST", "/pub?topic=t", "x"); code != 200 {
				full = true
			}
		}
		if !full {
			t.Error("a quota of two messages per partition let ten in")
		}
		// Partitions and durability belong to the settings: they are read, compared and changed like the others.
		if s.Partitions != 2 || s.Durability != meta.DurabilitySynced {
			t.Errorf("got %+v", s)
		}
		last.refused(t, "POST", path, `{"version":1,"partitions":1}`, 400, "the topic has 2, and none can be taken away")
		last.refused(
			t, "POST", path, `{"version":1,"durability":"memory"}`, 400, "it must be one of synced",
		)
		last.refused(t, "POST", path, `{"version":0,"partitions":4}`, 409, sentence(errs.ErrVersion))
		last.ask(t, "POST", path, `{"version":1,"partitions":4,"durability":"synced","min_isr":1}`, &s)
		if s.Version != 2 || s.Partitions != 4 || s.QuotaCount != 0 {
			t.Errorf("got %+v", s)
		}
		seen := map[uint32]bool{}
		bodies := map[string]bool{}
		for _, n := range nodes {
			nsqtest.Eventually(t, "the node to have them", func() bool {
				var got meta.TopicSettings
				n.ask(t, "GET", path, "", &got)
				return got == s && n.topicNow(t, "t").Partitions == 4
			})
		}
		for i := range 40 {
			nodes[i%len(nodes)].post(t, "/pub?topic=t", fmt.Sprint("after ", i))
		}
		nsqtest.Eventually(t, "the channel to have what was published to all partitions", func() bool {
			var list api.PeekList
			last.ask(t, "GET", "/channel/peek?topic=t&channel=c&count=1000", "", &list)
			for _, m := range list.Messages {
				seen[m.Partition], bodies[*m.Body] = true, true
			}
			return len(seen) == 4 && len(bodies) == 41
		})
	})
}

// A program that does not know keep_age_ms and keep_bytes leaves them as they are, through any node; every other
// setting that a change does not name gets its default.
func TestTopicSettingsKeepWhatOldProgramsCannotName(t *testing.T) {
	t.Parallel()
	onOneAndThree(t, func(t *testing.T, nodes []*testNode) {
		makeChannel(t, nodes, "t", "c", 1)
		const path = "/topic/settings?topic=t"
		for i, step := range []struct {
			body       string
			age, bytes int64
			quota      int64
		}{
			{`{"version":0,"keep_age_ms":60000,"keep_bytes":-1,"quota_count":7}`, 60000, -1, 7},
			{`{"version":1,"quota_count":8}`, 60000, -1, 8},
			{`{"version":2}`, 60000, -1, 0},
			{`{"version":3,"keep_bytes":0,"quota_count":9}`, 60000, 0, 9},
			{`{"version":4,"keep_age_ms":5,"keep_bytes":6}`, 5, 6, 0},
			{`{"version":5,"keep_age_ms":0}`, 0, 6, 0},
			{`{"version":6,"keep_bytes":0}`, 0, 0, 0},
			{`{"version":7,"quota_count":1}`, 0, 0, 1},
		} {
			var s meta.TopicSettings
			nodes[i%len(nodes)].ask(t, "POST", path, step.body, &s)
			if s.KeepAgeMs != step.age || s.KeepBytes != step.bytes || s.QuotaCount != step.quota {
				t.Errorf("after %s the settings are %+v", step.body, s)
			}
			nodes[i%len(nodes)].refused(t, "POST", path, step.body, 409, sentence(errs.ErrVersion))
		}
		nodes[0].refused(t, "POST", path, `{"version":100}`, 409, sentence(errs.ErrVersion))
		nodes[0].refused(t, "POST", path, `{"version":8,"keep_age_ms":-2}`, 400, "keep_age_ms")
	})
}
