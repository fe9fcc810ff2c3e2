package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/client"
)

// later publishes with a delay. The native protocol has none, so it does so over HTTP, one message after the other, and
// ends at the first one that is not known to be stored.
func (p *Publication) later(ctx context.Context, topic string, in io.Reader, out, progress io.Writer) error {
	c := &client.Client{Flags: p.Native.Flags}
	c.Address = p.Native.httpAddress()
	q := url.Values{"topic": {topic}, "defer": {strconv.FormatInt(p.delay.Milliseconds(), 10)}}
	if p.key != "" {
		q.Set("key", p.key)
	}
	p.Report.Topic = topic
	bodies, failed := p.bodies(ctx, in)
	show, finish := cli.CountBar(progress, -1, "publishing")
	clock := pace{rate: p.rate, start: time.Now()}
	var err error
	for err == nil {
		body, more := nextBody(ctx, bodies)
		if !more || !clock.wait(ctx) {
			break
		}
		if err = c.PostBytes(ctx, "/pub", q, body); err == nil {
			p.Report.Published++
			show(int64(p.Report.Published))
		} else {
			err = fmt.Errorf("message %d: %w; what follows it was not published", p.Report.Published+1, err)
		}
	}
	finish()
	if err == nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted: the rest was not published")
		} else {
			err = *failed
		}
	}
	return cmp.Or(err, p.show(out))
}
