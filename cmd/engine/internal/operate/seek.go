package operate

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"penstock/cmd/engine/internal/cli"
)

// seekPlace adds the parameters of /channel/seek to q, and says in words where the channel goes on.
func seekPlace(q url.Values, to string) (where string, err error) {
	set := func(kind, value string) {
		q.Set("to", kind)
		if value != "" {
			q.Set("value", value)
		}
	}
	if strings.HasPrefix(to, "+") || strings.HasPrefix(to, "-") {
		n, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			return "", cli.Fail(cli.ExitUsage, fmt.Errorf("--to %s is not a number of messages", to))
		}
		set("count", strconv.FormatInt(n, 10))
		if n < 0 {
			return fmt.Sprintf("%s back", cli.Counted(-n, "message")), nil
		}
		return fmt.Sprintf("%s forward", cli.Counted(n, "message")), nil
	}
	p, err := cli.ParsePlace("to", to, time.Now())
	switch {
	case err != nil:
		return "", err
	case p.Word == "oldest":
		set("beginning", "")
		return "the oldest message", nil
	case p.Word == "newest":
		set("end", "")
		return "the next message that is published", nil
	case p.IsID:
		set("id", p.String())
		return "message " + p.String(), nil
	}
	set("time", p.String())
	return "what was stored at " + p.String() + " or later", nil
}
