package message

import (
	"errors"
	"testing"
	"time"

	"penstock/internal/node/errs"
)

func TestMsgTimeout(t *testing.T) {
	const usual, most = time.Minute, 15 * time.Minute
	for asked, want := range map[time.Duration]time.Duration{
		0: usual, 1: 0, -1: 0, -time.Hour: 0, time.Millisecond - 1: 0, time.Millisecond: time.Millisecond,
		1500 * time.Microsecond: time.Millisecond, time.Second: time.Second, most: most, most + 1: most,
		50 * 24 * time.Hour: most,
	} {
		got, err := MsgTimeout(asked, usual, most)
		if got != want || (err != nil) != (want == 0) || err != nil && !errors.Is(err, errs.ErrOptions) {
			t.Errorf("%v gives %v, %v; want %v", asked, got, err, want)
		}
	}
	if got, err := MsgTimeout(0, time.Hour, most); got != most || err != nil {
		t.Errorf("a usual timeout above the longest gives %v, %v", got, err)
	}
}
