package retain

import (
	"testing"
	"time"

	"penstock/segment"
)

// What is confirmed goes, unless the settings keep it; bounds go before both. Age and bytes each let data go, and one
// that is not set lets nothing go.
func TestBoundaries(t *testing.T) {
	const end, confirmed, aged = 1000, 900, 600 // below 600 everything is older than an hour
	for name, c := range map[string]struct {
		keep  Keep
		bound segment.Offset
		want  segment.Offset
	}{
		"nothing is kept":                     {want: confirmed},
		"by age":                              {keep: Keep{Age: time.Hour}, want: aged},
		"by bytes":                            {keep: Keep{Bytes: 300}, want: 700},
		"by age, and fewer bytes":             {keep: Keep{Age: time.Hour, Bytes: 300}, want: 700},
		"by age, and more bytes":              {keep: Keep{Age: time.Hour, Bytes: 700}, want: aged},
		"more bytes than there are":           {keep: Keep{Bytes: 5000}},
		"fewer than are unconfirmed":          {keep: Keep{Bytes: 50}, want: confirmed},
		"for ever":                            {keep: Keep{Age: -1}},
		"any age of some bytes":               {keep: Keep{Age: -1, Bytes: 200}, want: 800},
		"any bytes of some age":               {keep: Keep{Age: time.Hour, Bytes: -1}, want: aged},
		"a bound removes what is kept":        {keep: Keep{Age: -1}, bound: 500, want: 500},
		"a bound removes what is unconfirmed": {keep: Keep{Age: -1}, bound: 950, want: 950},
	} {
		b := Boundaries{Confirmed: confirmed, Kept: c.keep.From(end, aged), Bound: c.bound}
		if got := b.To(); got != c.want {
			t.Errorf("%s: below %d nothing is kept, want %d", name, got, c.want)
		}
	}
}
