package traffic

import "penstock/cmd/engine/internal/cli"

// operator is cli.Operator with the commands of this package.
type operator struct{ cli.Operator }
