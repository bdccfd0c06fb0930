-- Nothing but this binary works with the index of one machine, so it may have patches at once. In
-- Postgres, bctl migrate --finish declares this.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (12, 11);

-- +goose Down
DELETE FROM schema_versions WHERE version = 12;
