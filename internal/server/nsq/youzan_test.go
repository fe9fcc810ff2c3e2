package nsq

import (
	"fmt"
	"strings"
	"testing"

	"penstock/internal/node/errs"
	"penstock/internal/server/nsq/command"
)

// youzan's error codes are for its own clients. Without a named partition or one of their verbs, errors are nsqd's.
func TestYouzanCodes(t *testing.T) {
	named, stock := &pending{verb: command.VerbPub, PartitionArgs: command.PartitionArgs{Addressed: true}},
		&pending{verb: command.VerbPub}
	ext := &pending{verb: command.VerbMpubExt}
	for _, x := range []struct {
		p        *pending
		err      error
		want     string
		survives bool
	}{
		{named, errs.ErrNoLeader, "E_FAILED_ON_NOT_LEADER PUB failed ", true},
		{named, fmt.Errorf("here: %w", errs.ErrMoved), "E_FAILED_ON_NOT_LEADER PUB failed ", true},
		{named, errs.ErrNoQuorum, "E_FAILED_ON_NOT_WRITABLE PUB failed ", true},
		{ext, errs.ErrNoSpace, "E_FAILED_ON_NOT_WRITABLE MPUB_EXT failed ", true},
		{named, errs.ErrNoPartition, "E_TOPIC_NOT_EXIST PUB failed ", false},
		{ext, errs.ErrHeaders, "E_INVALID_JSON_HEADER MPUB_EXT failed ", false},
		{ext, errs.ErrUnknown, "E_MPUB_FAILED MPUB failed ", false},
		{named, errs.ErrClosed, "E_PUB_FAILED PUB failed exiting", false},
		{stock, errs.ErrNoLeader, "E_PUB_FAILED PUB failed ", false},
		{stock, errs.ErrNoQuorum, "E_PUB_FAILED PUB failed ", false},
		{stock, errs.ErrNoTopic, "E_PUB_FAILED PUB failed ", false},
	} {
		if got := publishRefused(x.p, x.err); !strings.HasPrefix(got, x.want) || x.p.survives(x.err) != x.survives {
			t.Errorf("%v becomes %q, and the connection survives: %v", x.err, got, x.p.survives(x.err))
		}
	}
}
