package operate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"penstock/internal/server/api"
)

// opened is what penstock open prints as JSON.
type opened struct {
	URL    string `json:"url"`
	Node   string `json:"node"`   // "": the node wants a token first
	Opened bool   `json:"opened"` // a browser was told
}

// OpenCommand is penstock open.
func OpenCommand() *cobra.Command {
	o := new(operator)
	only := false
	cmd := o.Action("open", "Open the console of a node", cobra.NoArgs, func(ctx context.Context, _ []string) error {
		at, err := o.Client.URL("/console/")
		if err != nil {
			return err
		}
		var s api.Session
		if err := o.Client.Get(ctx, "/session", nil, &s); err != nil {
			return err
		}
		out := opened{URL: at, Node: s.Node}
		if !only {
			out.Opened, err = browse(ctx, at)
		}
		return cmp.Or(o.Print(out, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, at)
			return err
		}), err)
	})
	cmd.Long = "Print the address of the console of the node at --http-address, and open it with xdg-open where there\n" +
		"is a display. The console asks for a token by itself."
	cmd.Flags().BoolVar(&only, "print", false, "only print the address")
	return o.Anywhere(cmd)
}

// browse tells the desktop to open an address; it does nothing where there is no display.
func browse(ctx context.Context, at string) (opened bool, err error) {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return false, nil
	}
	if err := exec.CommandContext(ctx, "xdg-open", at).Run(); err != nil {
		return false, fmt.Errorf("the console was not opened, go there yourself: %w", err)
	}
	return true, nil
}
