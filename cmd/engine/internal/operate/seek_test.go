package operate

import (
	"net/url"
	"strings"
	"testing"
)

// The places of an earlier version are understood, and a line says how they are written now.
func TestSeekPlaces(t *testing.T) {
	const id, at = "0001000000000002", "2026-01-31T12:00:00Z"
	for _, tc := range []struct{ to, value, kind, sent, now string }{
		{"oldest", "", "beginning", "", ""},
		{"newest", "", "end", "", ""},
		{id, "", "id", id, ""},
		{at, "", "time", at, ""},
		{"+5", "", "count", "5", ""},
		{"-5", "", "count", "-5", ""},
		{"beginning", "", "beginning", "", "--to oldest"},
		{"end", "", "end", "", "--to newest"},
		{"id", id, "id", id, "--to " + id},
		{"time", at, "time", at, "--to " + at},
		{"count", "5", "count", "5", "--to +5"},
		{"count", "-5", "count", "-5", "--to -5"},
	} {
		q, progress := url.Values{}, new(strings.Builder)
		_, err := seekPlace(q, tc.to, tc.value, progress)
		if err != nil || q.Get("to") != tc.kind || q.Get("value") != tc.sent ||
			!strings.Contains(progress.String(), tc.now) || (tc.now == "") != (progress.Len() == 0) {
			t.Errorf("%+v: %v, %v, %q", tc, q, err, progress)
		}
	}
	for _, tc := range []struct{ to, value string }{
		{"oldest", "5"}, {"5", ""}, {"+x", ""}, {"id", ""}, {"", ""}, {"first", ""},
	} {
		if where, err := seekPlace(url.Values{}, tc.to, tc.value, new(strings.Builder)); err == nil {
			t.Errorf("%+v is %s", tc, where)
		}
	}
}
