//! InitProducerId: the identity of an idempotent producer.

use super::context::Broker;
use super::produce::propose_code;
use crate::error::ErrorCode;
use crate::wire::messages::{InitProducerIdRequest, InitProducerIdResponse};

/// Answers InitProducerId. A fresh id is always right: a producer that lost its place begins anew with it, and one that
/// asks for the next epoch of its id (KIP-360) gets a new id instead, as the protocol allows.
pub(super) async fn init(
    broker: &Broker,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse {
    let mut answer = InitProducerIdResponse::default();
    answer.producer_id = -1;
    answer.producer_epoch = -1;
    if request.transactional_id.is_some() {
        // Transactions are not built yet; the client shows this as a lack of permission, the one that it does not retry.
        answer.error_code = ErrorCode::TransactionalIdAuthorizationFailed.code();
        return answer;
    }
    match broker.router.next_producer_id().await {
        Ok(id) => {
            answer.producer_id = id.get();
            answer.producer_epoch = 0;
        }
        // CoordinatorNotAvailable: did not happen for the client, which asks again.
        Err(error) if propose_code(&error).retriable() => {
            answer.error_code = ErrorCode::CoordinatorNotAvailable.code();
        }
        Err(error) => answer.error_code = propose_code(&error).code(),
    }
    answer
}
