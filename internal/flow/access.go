package flow

// An Access is all that a client does at NATS: the subjects that it publishes to, its requests to
// JetStream among them, and those that it subscribes to. A server that allows nothing else lets it
// do its work; replies come to subjects below its Options.InboxPrefix.
type Access struct{ Publish, Subscribe []string }

// WalkerAccess is what a walker of a site does: it takes the site's walk tasks, reports
// what it found, and is present.
func WalkerAccess(site, inbox string) Access {
	return Access{append(accessTo(walkQueue(site)), Slices.Subject, progressSubject), append(replies(inbox), presentSubject+".*")}
}

// ReaderAccess is what a reader of a site does: it takes the site's read batches, reports
// what it stored, and is present.
func ReaderAccess(site, inbox string) Access {
	return Access{append(accessTo(readQueue(site)), Packs.Subject, Lists.Subject, Batches.Subject, progressSubject), append(replies(inbox), presentSubject+".*")}
}

// CommitterAccess is what a committer does: it hands work out, takes results, listens to
// reports, looks for workers, and keeps the streams and consumers of all sites.
func CommitterAccess(inbox string) Access {
	publish := append(accessTo(commitQueue), Walk.Subject+".*", Read.Subject+".*", presentSubject+".*")
	for _, q := range []queue{walkQueue(""), readQueue(""), commitQueue} {
		publish = append(publish,
			jsAPI+"STREAM.INFO."+q.stream, jsAPI+"STREAM.CREATE."+q.stream, jsAPI+"STREAM.UPDATE."+q.stream,
			jsAPI+"CONSUMER.LIST."+q.stream)
		if q == commitQueue {
			publish = append(publish, jsAPI+"CONSUMER.CREATE."+q.stream+"."+q.consumer+"."+q.filter)
			continue
		}
		publish = append(publish, jsAPI+"CONSUMER.CREATE."+q.stream+".*."+q.subjects, jsAPI+"CONSUMER.DELETE."+q.stream+".*")
	}
	return Access{publish, append(replies(inbox), progressSubject)}
}

// FollowerAccess is what a command does that follows a backup: it listens to reports, and may
// look at the streams.
func FollowerAccess(inbox string) Access {
	var publish []string
	for _, stream := range []string{walkStream, readStream, commitStream} {
		publish = append(publish, jsAPI+"STREAM.INFO."+stream, jsAPI+"CONSUMER.LIST."+stream)
	}
	return Access{publish, append(replies(inbox), progressSubject)}
}

const (
	jsAPI = "$JS.API."
	jsACK = "$JS.ACK."
)

// accessTo is what asking a consumer for messages takes, and acknowledging them; the
// subjects of acknowledgements have a domain and an account before the stream in newer servers.
func accessTo(q queue) []string {
	of := q.stream + "." + q.consumer
	return []string{
		jsAPI + "CONSUMER.INFO." + of, jsAPI + "CONSUMER.MSG.NEXT." + of,
		jsACK + of + ".>", jsACK + "*.*." + of + ".>",
	}
}

func replies(inbox string) []string { return []string{inbox + ".>"} }
