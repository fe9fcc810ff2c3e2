package operate

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"penstock/cmd/engine/internal/cli"
	"penstock/cmd/engine/internal/values"
	"penstock/internal/server/api"
)

// searched is what the flags of topic peek search for.
type searched struct {
	key, contains, since string
	headers              []string
}

func (s *searched) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.key, "key", "", "show only messages with this `KEY`")
	cmd.Flags().StringArrayVar(&s.headers, "header", nil,
		"show only messages with a header as this `RULE` says, such as region=eu, as of filters; may be repeated")
	cmd.Flags().StringVar(&s.contains, "contains", "", "show only messages whose body has this `TEXT`")
	cmd.Flags().StringVar(&s.since, "since", "",
		"show only messages that were published at this `TIME` or later, such as "+values.TimeHelp)
}

// add adds what is searched for to a query; wanted: there is something.
func (s *searched) add(q url.Values, now time.Time) (wanted bool, err error) {
	if s.since != "" {
		at, err := values.ParseTime(s.since, now)
		if err != nil {
			return false, cli.Fail(cli.ExitUsage, fmt.Errorf("--since: %w", err))
		}
		q.Set("since", at.UTC().Format(time.RFC3339Nano))
	}
	for name, text := range map[string]string{"key": s.key, "contains": s.contains} {
		if text != "" {
			q.Set(name, text)
		}
	}
	q["header"] = s.headers
	return s.since+s.key+s.contains != "" || len(s.headers) > 0, nil
}

// search asks until it has as many messages as q counts, or all was looked at: a request looks at a bounded number.
func (o *operator) search(ctx context.Context, q url.Values) error {
	all := api.PeekList{Messages: []api.PeekedMessage{}}
	for left, _ := strconv.Atoi(q.Get("count")); ; {
		var some api.SearchList
		if err := o.Client.Get(ctx, "/topic/search", q, &some); err != nil {
			return err
		}
		all.Messages = append(all.Messages, some.Messages...)
		left -= len(some.Messages)
		if some.Next == "" || left <= 0 {
			return o.Print(all, func(w io.Writer) error { return printPeeked(w, &all) })
		}
		q.Set("next", some.Next)
		q.Set("count", strconv.Itoa(left))
	}
}
