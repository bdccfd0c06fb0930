package open

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/services/committer/commit"
)

// NATS connects to the NATS server of a repository's fleet. name identifies the connection
// in monitoring.
func NATS(c *config.Config, name string, repository backup.RepositoryID, log *slog.Logger) (*flow.Conn, error) {
	return ServiceNATS(c, name, repository, log, nil, nil, nil)
}

// ServiceNATS is NATS for a service, whose consumers report their activity and dropped
// messages.
func ServiceNATS(c *config.Config, name string, repository backup.RepositoryID, log *slog.Logger, moved, dropped func(), mayTake func(context.Context) error) (*flow.Conn, error) {
	o := natsOptions(c, name)
	o.Repository, o.Log, o.Moved, o.Dropped, o.MayTake = repository, log, moved, dropped, mayTake
	o.WorkAge = cmp.Or(c.Worker.QueueLease, commit.DefaultQueueLease)
	return flow.Connect(o)
}

func natsOptions(c *config.Config, name string) flow.Options {
	return flow.Options{
		URL: c.NATS.URL, Name: name, Credentials: c.NATS.CredentialsFile, User: c.NATS.User, Password: c.NATS.Password,
		CAFile: c.NATS.CAFile, CertFile: c.NATS.CertFile, KeyFile: c.NATS.KeyFile,
		InboxPrefix: c.NATS.InboxPrefix, Replicas: c.NATS.Replicas,
	}
}
