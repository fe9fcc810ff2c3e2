package operate

import (
	"net/url"
	"testing"
)

// Every place of --to becomes the parameters that the API reads; what is no place is refused.
func TestSeekPlaces(t *testing.T) {
	const id, at = "0001000000000002", "2026-01-31T12:00:00Z"
	for _, tc := range []struct{ to, kind, sent string }{
		{"oldest", "beginning", ""},
		{"newest", "end", ""},
		{id, "id", id},
		{at, "time", at},
		{"+5", "count", "5"},
		{"-5", "count", "-5"},
	} {
		q := url.Values{}
		if _, err := seekPlace(q, tc.to); err != nil || q.Get("to") != tc.kind || q.Get("value") != tc.sent {
			t.Errorf("%+v: %v, %v", tc, q, err)
		}
	}
	for _, to := range []string{"5", "+x", "id", "", "first", "beginning", "end", "time", "count"} {
		if where, err := seekPlace(url.Values{}, to); err == nil {
			t.Errorf("%s is %s", to, where)
		}
	}
}
